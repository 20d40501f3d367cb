package archtest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// clusterModules talk to a Kubernetes API server. berthd needs none and has no rights there.
var clusterModules = []string{"k8s.io/client-go", "k8s.io/dynamic-resource-allocation"}

// machineModules are what a berthd uses of its own machine. berthctl decides on nodes without them.
var machineModules = []string{
	"go.etcd.io/bbolt", "github.com/godbus/dbus", "github.com/coreos/go-systemd", "github.com/opencontainers/cgroups",
	"github.com/opencontainers/runc", "k8s.io/cri-api",
}

// TestClientIsSmall: berthctl is linked with none of them.
func TestClientIsSmall(t *testing.T) {
	t.Parallel()
	for _, p := range dependencies(t, "clients/berthctl") {
		for _, m := range machineModules {
			if p == m || strings.HasPrefix(p, m+"/") {
				t.Errorf("berthctl is linked with %s: berthd's main gives that to server/internal/app", p)
			}
		}
	}
	if !slices.ContainsFunc(dependencies(t, "server/berthd"), func(p string) bool { return strings.HasPrefix(p, machineModules[0]) }) {
		t.Errorf("berthd is not linked with %s any more", machineModules[0])
	}
}

// dependencies are all packages that a program is linked from.
func dependencies(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "./"+program)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", program, err)
	}
	return strings.Fields(string(out))
}

// fromModule lists the packages of a module.
func fromModule(packages []string, module string) (found []string) {
	for _, p := range packages {
		if p == module || strings.HasPrefix(p, module+"/") {
			found = append(found, p)
		}
	}
	return found
}

// TestDaemonNeedsNoCluster: neither berthd nor a package that it imports imports the clients of an API server. berth-dra
// does, which shows that the check would find them.
func TestDaemonNeedsNoCluster(t *testing.T) {
	t.Parallel()
	daemon, driver := dependencies(t, "server/berthd"), dependencies(t, "clients/dra")
	if !slices.Contains(daemon, "google.golang.org/grpc") {
		t.Fatalf("the packages of berthd lack google.golang.org/grpc: %v", daemon)
	}
	for _, module := range clusterModules {
		if found := fromModule(daemon, module); len(found) > 0 {
			t.Errorf("berthd is linked with %v: it must not need a cluster", found)
		}
		if len(fromModule(driver, module)) == 0 {
			t.Errorf("berth-dra is not linked with %s: remove the module from this test", module)
		}
	}
}
