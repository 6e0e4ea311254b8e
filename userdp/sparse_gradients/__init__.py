"""Optimisation with sparse gradients (Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024)."""
