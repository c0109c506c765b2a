"""Reports, derived from records alone.

Owns: what a report says, in English and Chinese, and its forms: Markdown, HTML, JSON, the summary of campaigns.
Does not own: any figure or verdict.
Read first: document.py, comparison_report.py.
"""
