package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/config"
)

// textFields are the fields with text that name neither a file nor a directory.
var textFields = []string{
	"apiVersion", "kind", "listenMode", "listenGroup", "beside", "observe.kubelet", "observe.nodeName", "httpMode",
	"log.level", "log.format", "cgroups.tree",
	"cgroups.driver", "cgroups.root", "cgroups.driftPolicy", "cgroups.qosReserved", "cgroups.memoryReservationPolicy",
	"cgroups.swapBehavior", "cpu.policy", "cpu.options", "memory.policy", "memory.reserved[].limits", "memory.checkFreeHugePages",
	"topology.policy", "topology.scope", "topology.planning", "topology.options",
	"reserved.system", "reserved.kube", "reserved.evictionHard",
	"node.enforceNodeAllocatable", "node.systemReservedCgroup", "node.kubeReservedCgroup", "node.systemCgroups",
	"node.kubeletCgroups", "node.runtimeCgroups", "node.agentCgroups", "node.kernelTunables", "providers.order",
	"providers.external.required", "providers.external.allow[].provider", "providers.external.allow[].edits", "devices.unknown",
	"devices.elsewhere", "hotplug.reservedCPUs", "hotplug.onLost", "dra.from", "dra.memory[].limits", "access[].user",
	"access[].group", "access[].roles", "access[].owners",
}

// TestFieldsThatDecide: every field of the configuration says what it names.
func TestFieldsThatDecide(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range trust.Fields(apiconfig.Default()) {
		seen[f.Path] = true
		if text := slices.Contains(textFields, f.Path); text == (f.Kind != "") {
			t.Errorf("the field %s: give it the tag names, or add it to textFields if it names no file", f.Path)
		}
		if f.Kind != "" && !slices.Contains(trust.Kinds(), f.Kind) {
			t.Errorf("the field %s names a %q, which is not known", f.Path, f.Kind)
		}
	}
	for _, path := range textFields {
		if !seen[path] {
			t.Errorf("there is no field %s", path)
		}
	}
}

// TestConfigurationOfOthers: a file that another user could change is not read, at a start or a reload.
func TestConfigurationOfOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+apiconfig.APIVersion+"\nkind: "+apiconfig.Kind+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := config.Load(config.Sources{BerthFile: path}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, s := range []config.Sources{{BerthFile: path}, {KubeletFile: path}} {
		if _, _, err := config.Load(s); errdefs.ClassOf(err) != errdefs.Precondition ||
			!strings.Contains(err.Error(), "mode 0666) can be written to by everybody: chmod go-w "+path) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
