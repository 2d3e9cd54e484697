"""Records a run: its folder, its events and its use of the machine."""
