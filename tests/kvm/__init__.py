"""What every driver must do, tried on real machines under KVM: one suite, run once with each driver.

`make test-kvm` runs it on a host with KVM, `make test-rig` in the emulated host of tests/rig.
"""
