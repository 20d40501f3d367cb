package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// programs run in the pods.
var programs = nodetest.NewPrograms(map[string]string{"probe": "hack/probe"})

func TestMain(m *testing.M) {
	if os.Getenv(waitsVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // if nobody ends it
		defer cancel()
		<-ctx.Done()
		return
	}
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// TestClusterNodes: pods run on each of several nodes, and their logs are read through the API server.
func TestClusterNodes(t *testing.T) {
	cluster.Need(t)
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "probe"), Nodes: 3})
	for _, node := range []string{"n1", "n2", "n3"} {
		c.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-%[1]s"}, "spec": {"nodeName": %[1]q, "containers": [
			{"name": "main", "image": %[2]q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"]}]}}`,
			node, containerd.ProbeImage))
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		c.Eventually("the pod on "+node+" has written its log", func() bool {
			text, err := c.Kubectl("logs", "on-"+node)
			return err == nil && text != ""
		})
	}
}

// upVariable is set by hack/cluster/up.sh: the number of nodes, and the directory that gets the kubeconfig.
const upVariable, upDirVariable = "BERTH_UP", "BERTH_UP_DIR"

// TestClusterStays runs a cluster for people until it gets SIGTERM.
func TestClusterStays(t *testing.T) {
	nodes, dir := os.Getenv(upVariable), os.Getenv(upDirVariable)
	if nodes == "" {
		t.Skipf("nobody asks for a cluster that stays: %s is not set; hack/cluster/up.sh sets it", upVariable)
	}
	cluster.Need(t)
	count, err := strconv.Atoi(nodes)
	if err != nil || count < 1 {
		t.Fatalf("%s is %q, expected the number of nodes", upVariable, nodes)
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "probe"), Nodes: count})
	var sockets strings.Builder
	for _, h := range c.Hosts() {
		fmt.Fprintf(&sockets, "%s %s %s\n", h.Name, h.Containerd.Socket, h.Containerd.NRI)
	}
	if err := os.WriteFile(filepath.Join(dir, "sockets"), []byte(sockets.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// The last file: it means that the cluster is ready.
	if err := c.Forward(filepath.Join(dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	select {} // the signal ends the process, after all is removed
}

func TestCluster(t *testing.T) {
	cluster.Need(t) // before something is built for it
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "probe")})
	c.Apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [
		{"name": "main", "image": "docker.io/library/probe:latest", "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"]}]}}`)
	c.Eventually("the pod runs", func() bool {
		phase, err := c.Kubectl("get", "pod", "web", "-o", "jsonpath={.status.phase}")
		return err == nil && phase == "Running"
	})
	if text, err := c.Kubectl("delete", "pod", "web", "--grace-period=1"); err != nil {
		t.Error(err, text)
	}
}
