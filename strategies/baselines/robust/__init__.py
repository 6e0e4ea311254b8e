"""Robust statistics in linear time: Ghazi, Kumar, Liu, Manurangsi, corrected; its strategies are of `strategies`."""
