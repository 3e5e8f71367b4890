"""What a terminal shows: tables, progress, and text that is safe to print."""
