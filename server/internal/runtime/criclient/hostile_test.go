package criclient_test

import (
	"fmt"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestHostileRuntime: whatever cgroup a runtime reports for a container, it names no file outside
// of the cgroup tree, and its report about one container changes no other.
func TestHostileRuntime(t *testing.T) {
	t.Parallel()
	running := criv1.ContainerState_CONTAINER_RUNNING
	paths := map[string]string{
		"up":     "/../../etc",
		"inside": "/kubepods/../../../etc",
		"dots":   "/kubepods/./../..",
		"empty":  "",
		"lines":  "/kubepods/a\\nb",
		"zero":   "/kubepods/\\u0000/x",
		"long":   "/" + strings.Repeat("a/", 1<<16),
		"name":   "/" + strings.Repeat("n", 1<<16),
		"deep":   `x"}},"y":` + strings.Repeat(`{"a":`, 1<<14) + `1` + strings.Repeat("}", 1<<14) + `,"z":{"q":{"r":"`,
		"slice":  "kubepods.slice:cri:../../x",
	}
	o := &odd{containers: []*criv1.Container{labelled("sound", running), labelled("../../etc/passwd", running),
		labelled(strings.Repeat("i", 1<<16), running)}}
	for id := range paths {
		o.containers = append(o.containers, labelled(id, running))
	}
	o.status = func(id string) (*criv1.ContainerStatusResponse, error) {
		path, ok := paths[id]
		if !ok {
			path = "/sound"
		}
		return &criv1.ContainerStatusResponse{Info: map[string]string{
			"info": fmt.Sprintf(`{"pid":-1,"runtimeSpec":{"linux":{"cgroupsPath":"%s"}}}`, path),
		}}, nil
	}
	listed, err := o.client(t).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sound := false
	for _, c := range listed {
		sound = sound || c.ID == "sound" && c.Cgroup.String() == "/sound"
		if err := c.Cgroup.Check(); c.Cgroup != nil && err != nil {
			t.Errorf("%.40s: the cgroup %.80s: %v", c.ID, c.Cgroup, err)
		}
	}
	if !sound {
		t.Error("the sound one is not listed with its cgroup")
	}
}
