"""Robust statistics in linear time: Ghazi, Kumar, Liu, Manurangsi, corrected."""
