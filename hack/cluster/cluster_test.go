package cluster_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// programs run in the pods.
var programs = nodetest.NewPrograms(map[string]string{"probe": "hack/probe"})

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
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
