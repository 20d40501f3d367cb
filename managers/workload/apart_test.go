package workload

import "testing"

// TestApart: a pod that stands for a container of another pod is recognized, and no other pod is.
func TestApart(t *testing.T) {
	t.Parallel()
	one := []Container{{Name: "main"}}
	uid, name := Apart("u", "web", "main")
	for what, row := range map[string]struct {
		pod       Pod
		uid, name string
	}{
		"a container":              {Pod{UID: uid, Name: name, Containers: one}, "u", "web"},
		"a pod":                    {Pod{UID: "u", Name: "web", Containers: one}, "", ""},
		"a name with a dot":        {Pod{UID: "u", Name: "web.main", Containers: one}, "", ""},
		"a uid with a dot":         {Pod{UID: "u.main", Name: "web", Containers: one}, "", ""},
		"another container":        {Pod{UID: uid, Name: name, Containers: []Container{{Name: "other"}}}, "", ""},
		"two containers":           {Pod{UID: uid, Name: name, Containers: []Container{{Name: "main"}, {Name: "other"}}}, "", ""},
		"no containers":            {Pod{UID: uid, Name: name}, "", ""},
		"nothing before the point": {Pod{UID: ".main", Name: ".main", Containers: one}, "", ""},
		"a resource claim":         {Pod{UID: uid, Name: name, Containers: one, ResourceClaim: &ResourceClaim{}}, "", ""},
	} {
		uid, name, apart := row.pod.ApartFrom()
		if uid != row.uid || name != row.name || apart != (row.uid != "") {
			t.Errorf("%s: got %q, %q, %t", what, uid, name, apart)
		}
	}
}
