// From the logits of an image to an answer, as qcn/confidence.py and libqcn (deploy/src/answer.cpp) have it; all are held
// to tests/answers.json.
"use strict";

// logit [classes] -> best: the index of the largest, the first of equal ones; order: all classes, the largest first;
// probability [classes]; known: false for what is like nothing that the network was trained on.
function answerOf(logit, { name, confidence, known }) {
  const z = Array.from(logit);
  if (!z.every(Number.isFinite)) throw new Error(`${name} returned NaN or an infinite number, not an answer`);
  const order = z.map((_, i) => i).sort((a, b) => z[b] - z[a] || a - b),
    [best] = order,
    powers = (temperature) => z.map((one) => Math.exp((one - z[best]) / temperature)),
    total = (numbers) => numbers.reduce((a, b) => a + b);
  const likely = powers(confidence ? confidence.temperature : 1),
    probability = likely.map((power) => power / total(likely));
  const scores = { probability: probability[best], logit: z[best], energy: z[best] + Math.log(total(powers(1))) };
  return { best, order, probability, known: !known || scores[known.score] >= known.threshold };
}

const percent = (part) => (part > 0.9995 ? "> 99.9 %" : part < 0.0005 ? "< 0.1 %" : `${(100 * part).toFixed(1)} %`);

// For people: "bag, 95.3 %", or "unknown (most like bag, 41.0 %)".
function wordsOf({ best, probability, known }, classes) {
  const likely = `${classes[best]}, ${percent(probability[best])}`;
  return known ? likely : `unknown (most like ${likely})`;
}
