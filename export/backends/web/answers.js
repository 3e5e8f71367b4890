// From the logits and poses of an image to an answer, as qcn/networks/confidence.py, qcn/direction.py and libqcn
// (deploy/src/answer.cpp) have it; all are held to tests/answers.json and tests/directions.json.
"use strict";

// logit [classes] -> best: the index of the largest, the first of equal ones; order: all classes, the largest first;
// probability [classes]; known: false for what is like nothing that the network was trained on; direction: of the pose
// [classes, 3], or null.
function answerOf(logit, { name, confidence, known, direction }, pose) {
  const z = Array.from(logit);
  if (!z.every(Number.isFinite)) throw new Error(`${name} returned NaN or an infinite number, not an answer`);
  const order = z.map((_, i) => i).sort((a, b) => z[b] - z[a] || a - b),
    [best] = order,
    powers = (temperature) => z.map((one) => Math.exp((one - z[best]) / temperature)),
    total = (numbers) => numbers.reduce((a, b) => a + b);
  const likely = powers(confidence ? confidence.temperature : 1),
    probability = likely.map((power) => power / total(likely));
  const scores = { probability: probability[best], logit: z[best], energy: z[best] + Math.log(total(powers(1))) };
  const isKnown = !known || scores[known.score] >= known.threshold,
    told = isKnown && direction && pose ? directionOf(pose.slice(3 * best, 3 * best + 3), best, direction) : null;
  return { best, order, probability, known: isKnown, direction: told };
}

// From where an object is seen, in degrees: the pose [3] of its class, and the manifest's `direction`; null for a round
// class, or a pose without a direction. The elevation is null where only azimuths are known.
function directionOf([x, y, height], label, { symmetry, elevation: upwards, lengths, spreads }) {
  const z = upwards ? height : 0,
    length = Math.sqrt(x * x + y * y + z * z);
  if (!symmetry[label] || !(length > 0 && length < Infinity)) return null;
  const period = 360 / symmetry[label],
    degrees = (radians) => (180 / Math.PI) * radians;
  let azimuth = degrees(Math.atan2(y, x)) % period;
  if (azimuth < 0) azimuth += period;
  if (azimuth >= period || azimuth === 0) azimuth = 0; // rounded up, or -0
  const elevation = degrees(Math.atan2(z, Math.hypot(x, y))),
    [around, up] = [azimuth, elevation].map((angle) => (Math.PI / 180) * angle);
  return {
    azimuth,
    elevation: upwards ? elevation : null,
    vector: [Math.cos(up) * Math.cos(around), Math.cos(up) * Math.sin(around), z / length],
    spread: spreads[lengths.filter((limit) => length >= limit).length],
  };
}

// For people: "azimuth 120°, elevation 30° (± 12°)".
function directionWords({ azimuth, elevation, spread }) {
  const whole = (degrees) => Math.floor(degrees + 0.5);
  return `azimuth ${whole(azimuth) % 360}°${elevation === null ? "" : `, elevation ${whole(elevation)}°`} (± ${whole(spread)}°)`;
}

const percent = (part) => (part > 0.9995 ? "> 99.9 %" : part < 0.0005 ? "< 0.1 %" : `${(100 * part).toFixed(1)} %`);

// For people: "bag, 95.3 %", or "unknown (most like bag, 41.0 %)".
function wordsOf({ best, probability, known }, classes) {
  const likely = `${classes[best]}, ${percent(probability[best])}`;
  return known ? likely : `unknown (most like ${likely})`;
}
