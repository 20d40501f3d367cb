package hotplug

import "testing"

func TestConcerns(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"offline@/devices/system/cpu/cpu3\x00ACTION=offline\x00DEVPATH=/devices/system/cpu/cpu3\x00SUBSYSTEM=cpu\x00SEQNUM=1\x00": true,
		"online@/devices/system/memory/memory40\x00SUBSYSTEM=memory\x00":                                                          true,
		"add@/devices/system/node/node1\x00SUBSYSTEM=node":                                                                        true,
		"add@/devices/virtual/net/veth0\x00SUBSYSTEM=net\x00":                                                                     false,
		"change@/x\x00NAME=SUBSYSTEM=cpu\x00":                                                                                     false,
		"change@/x\x00SUBSYSTEM=cpuidle\x00":                                                                                      false,
		"":                                                                                                                        false,
	} {
		if got := concerns([]byte(message)); got != want {
			t.Errorf("%q: %t", message, got)
		}
	}
}
