"""Gradio's theme in our colours."""

from __future__ import annotations

import gradio as gr

_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Arial", "sans-serif")
_MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def make_theme() -> gr.themes.Base:
    """Returns the theme, with system fonts: nothing is fetched."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.indigo,
        secondary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        text_size=gr.themes.sizes.text_md,
        spacing_size=gr.themes.sizes.spacing_md,
        font=_SANS,
        font_mono=_MONO,
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        block_label_text_weight="600",
        block_title_text_weight="600",
        block_title_text_size="13.5px",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_info_text_size="12.5px",
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        input_background_fill="white",
        input_background_fill_dark="*neutral_900",
        input_border_width="1px",
        input_border_color="*neutral_300",
        input_border_color_dark="*neutral_700",
        input_border_color_focus="*primary_500",
        input_border_color_focus_dark="*primary_400",
        input_shadow="none",
        input_shadow_focus="0 0 0 3px *primary_100",
        input_shadow_focus_dark="0 0 0 3px #818cf833",
        input_padding="8px 12px",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
        button_primary_text_color="white",
        button_secondary_background_fill="white",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_border_color="*neutral_300",
        button_secondary_border_color_dark="*neutral_600",
        button_border_width="1px",
        button_large_radius="*radius_md",
        button_large_text_weight="600",
        button_large_text_size="*text_md",
        checkbox_label_background_fill="white",
        checkbox_label_background_fill_dark="*neutral_900",
        checkbox_label_background_fill_selected="*primary_50",
        checkbox_label_background_fill_selected_dark="#312e8155",
        checkbox_label_border_width="1px",
        checkbox_label_border_color="*neutral_300",
        checkbox_label_border_color_dark="*neutral_700",
        checkbox_label_border_color_selected="*primary_500",
        checkbox_label_border_color_selected_dark="*primary_400",
        checkbox_label_padding="6px 12px",
        checkbox_label_text_color_selected="*body_text_color",
        checkbox_background_color_selected="*primary_600",
        checkbox_border_color_selected="*primary_600",
        layout_gap="16px",
        form_gap_width="0px",
        panel_background_fill="transparent",
    )
