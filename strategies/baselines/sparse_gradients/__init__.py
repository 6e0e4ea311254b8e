"""Sparse gradients: Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024, corrected."""
