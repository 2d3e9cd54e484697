"""Fine-tunes models on labelled tasks; importing it imports no backend."""
