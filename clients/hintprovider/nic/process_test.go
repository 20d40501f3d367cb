//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/servertest"
)

// asProvider makes the test binary be the provider: the tests run the real program
// as a process of its own.
const asProvider = "NIC_TEST_AS_PROVIDER"

func TestMain(m *testing.M) {
	if os.Getenv(asProvider) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process runs the provider on a tree of files and returns its socket.
func process(t *testing.T) string {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "nic")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "sys"), tree(four)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "nic.sock")
	cmd := exec.Command(os.Args[0], "--sysfs", filepath.Join(dir, "sys"), "--socket", socket, "--berth", "none")
	cmd.Env = append(os.Environ(), asProvider+"=1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// The provider keeps the contract as a process of its own, as berthd sees it.
func TestContractOfTheProcess(t *testing.T) {
	t.Parallel()
	hinttest.Run(t, func() hinttest.Setup {
		l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n4c1t")})
		return setup(t, servertest.ExternalProvider(t, l, ledger.ExternalProvider{
			Name: "nic", Endpoint: process(t), Required: true, Resources: []string{resource}, Deadline: 20 * time.Second,
		}, uint32(os.Getuid()), "env"))
	})
}
