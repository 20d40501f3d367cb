package archtest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// clusterModules talk to a Kubernetes API server. berthd needs none and has no rights there.
var clusterModules = []string{"k8s.io/client-go", "k8s.io/dynamic-resource-allocation"}

// clientModules are those that berthctl may be linked with. What a berthd alone needs comes to its App from its main
// (server/internal/system).
var clientModules = []string{
	"github.com/cespare/xxhash", "github.com/fsnotify/fsnotify", "github.com/fxamacker/cbor", "github.com/go-logr/logr",
	"github.com/grpc-ecosystem/go-grpc-middleware", "github.com/klauspost/compress", "github.com/spf13/cobra", "github.com/spf13/pflag",
	"github.com/x448/float16", "go.yaml.in/yaml", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/term", "golang.org/x/text",
	"golang.org/x/time", "google.golang.org/genproto/googleapis/rpc", "google.golang.org/grpc", "google.golang.org/protobuf",
	"gopkg.in/inf.v0", "k8s.io/apimachinery", "k8s.io/client-go/third_party", "k8s.io/client-go/util/jsonpath", "k8s.io/klog/v2",
	"k8s.io/kubelet/pkg", "k8s.io/utils", "sigs.k8s.io/json", "sigs.k8s.io/yaml",
}

// TestClientIsSmall: berthctl is linked with these modules, and with no other.
func TestClientIsSmall(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range dependencies(t, "clients/berthctl") {
		first, _, _ := strings.Cut(p, "/")
		if !strings.Contains(first, ".") || first == "vendor" || strings.HasPrefix(p, "github.com/berthd/berth/") {
			continue
		}
		i := slices.IndexFunc(clientModules, func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") })
		if i < 0 {
			t.Errorf("berthctl is linked with %s: it does not need it, or name its module here", p)
			continue
		}
		used[clientModules[i]] = true
	}
	for _, m := range clientModules {
		if !used[m] {
			t.Errorf("berthctl is not linked with %s any more: remove it here", m)
		}
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
