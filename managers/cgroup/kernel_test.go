package cgroup

import "testing"

func TestMovesMemoryV2(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{
		"5.15.0-91-generic": true, "5.15": true, "6.1.0-56-cloud-amd64": true, "10.0-rc1": true,
		"5.14.0-427.el9.x86_64": false, "4.19.0": false, "": false, "linux": false,
	} {
		if got := MovesMemoryV2(release); got != want {
			t.Errorf("%q: %t", release, got)
		}
	}
}
