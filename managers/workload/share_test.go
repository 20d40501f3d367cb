package workload

import "testing"

// TestShare: which pods are served, and how.
func TestShare(t *testing.T) {
	t.Parallel()
	q := Quantities{CPU: 1000, Memory: 1}
	full := Container{Name: "c", Requests: q, Limits: q}
	part := Container{Name: "d", Requests: q}
	both := Features{PodLevelResources: true, PodLevelResourceManagers: true}
	podLevel := &Resources{Requests: q, Limits: q}
	for _, row := range []struct {
		name                    string
		pod                     Pod
		features                Features
		none, left, whole       bool
		fullIsApart, partsApart bool
	}{
		{"Guaranteed", Pod{Containers: []Container{full}}, both, false, false, false, true, true},
		{"Burstable", Pod{Containers: []Container{full, part}}, both, true, false, false, true, true},
		{"as a whole", Pod{Resources: podLevel, Containers: []Container{full, part}}, both, false, false, true, true, false},
		{"not managed", Pod{Resources: podLevel, Containers: []Container{full}}, Features{PodLevelResources: true}, true, true, false,
			true, true},
		{"not looked at", Pod{Resources: podLevel, Containers: []Container{full}}, Features{PodLevelResourceManagers: true}, true, true,
			false, true, true},
	} {
		s := row.pod.Share(row.features)
		if s.None() != row.none || s.Left != row.left || s.Whole != row.whole || s.Apart(&full) != row.fullIsApart ||
			s.Apart(&part) != row.partsApart {
			t.Errorf("%s: %+v, none %t, apart %t and %t", row.name, s, s.None(), s.Apart(&full), s.Apart(&part))
		}
	}
}

// TestStarved: amounts of a pod of 4 and 2; a container without a list shares.
func TestStarved(t *testing.T) {
	t.Parallel()
	type c struct {
		role Role
		own  []int64
	}
	for _, row := range []struct {
		name       string
		containers []c
		at         int
		early      bool
	}{
		{"room for all", []c{{App, []int64{3, 1}}, {App, nil}}, -1, false},
		{"the first is used up", []c{{App, []int64{4, 1}}, {App, nil}}, 0, false},
		{"the second is used up", []c{{App, []int64{3, 1}}, {App, []int64{0, 1}}, {App, nil}}, 1, false},
		{"more than there is", []c{{App, nil}, {App, []int64{5, 0}}}, 0, false},
		{"nobody shares", []c{{App, []int64{4, 2}}}, -1, false},
		{"what an init container has comes back", []c{{Init, []int64{4, 2}}, {App, nil}}, -1, false},
		{"a sidecar keeps what it has", []c{{Sidecar, []int64{4, 0}}, {App, nil}}, 0, false},
		{"an init container shares beside a sidecar", []c{{Sidecar, []int64{0, 2}}, {Init, nil}, {App, []int64{1, 0}}}, 1, true},
		{"an init container shares before the sidecar", []c{{Init, nil}, {Sidecar, []int64{0, 2}}, {App, []int64{1, 0}}}, -1, false},
		{"only an init container shares, and has room", []c{{Init, nil}, {App, []int64{4, 2}}}, -1, false},
	} {
		var pod Pod
		own := map[string][]int64{}
		for i, one := range row.containers {
			name := string(rune('a' + i))
			pod.Containers = append(pod.Containers, Container{Name: name, Role: one.role})
			own[name] = one.own
		}
		s := Share{Pod: &pod, Guaranteed: true, Whole: true}
		total := []int64{4, 2}
		at, early := s.Starved(total, func(c *Container) []int64 { return own[c.Name] })
		if at != row.at || early != row.early || total[0] != 4 || total[1] != 2 {
			t.Errorf("%s: %d, %t (of %v), want %d, %t", row.name, at, early, total, row.at, row.early)
		}
	}
}
