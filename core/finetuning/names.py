"""Titles of the metrics of fine-tuning, the most telling first."""

METRICS = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "f1_macro": "Macro F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "span_f1": "Span F1",
    "span_precision": "Span precision",
    "span_recall": "Span recall",
    "mse": "Mean squared error",
}
