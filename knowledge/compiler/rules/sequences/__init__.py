"""Rules of operators that walk along one dimension: scans and recurrent layers."""
