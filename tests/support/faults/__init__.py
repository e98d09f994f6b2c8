"""The parts of the fault proxy (`tests/support/fault_proxy.py`): wire, faults, rules, record."""
