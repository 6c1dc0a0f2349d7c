// SPDX-License-Identifier: Apache-2.0
// libudev, as hwloc sees it, with no udev there: hwloc then reads what it can of disks from /sys and /run/udev by
// itself. Debian has no archive of the real one.

extern "C" {

struct udev;
struct udev_device;

// No connection to udev. Without one, hwloc calls none of the others.
udev* udev_new() { return nullptr; }

udev* udev_unref(udev*) { return nullptr; }

udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) { return nullptr; }

udev_device* udev_device_unref(udev_device*) { return nullptr; }

const char* udev_device_get_property_value(udev_device*, const char*) { return nullptr; }
}
