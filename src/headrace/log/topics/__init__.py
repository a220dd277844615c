"""Topics of the log: which segments and frames hold them, so that readers of few skip the rest."""
