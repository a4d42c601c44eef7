"""Figures and tables of the papers, each from one declarative file, with the published numbers beside ours."""
