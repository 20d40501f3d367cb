package cri_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/hack/containerd"
	"github.com/berthd/berth/hack/rig"
)

const patience = time.Minute

// TestContainerd holds the runtime against the same demands on a real containerd.
func TestContainerd(t *testing.T) {
	t.Parallel()
	d := containerd.Run(t)
	var opened atomic.Int64
	t.Run("suite", func(t *testing.T) {
		containertest.Run(t, func(t *testing.T) containertest.Bench {
			suffix := fmt.Sprintf("-%d", opened.Add(1))
			r, changed := open(t, d.Socket, "us"+suffix)
			return containertest.Bench{
				Runtime: r, Image: "probe", Program: "/probe", Changed: changed, OwnIDs: true,
				CgroupParent: d.Cgroup + "/pod" + suffix, LogDir: t.TempDir(), Suffix: suffix,
				Listening: listening,
			}
		})
	})
}

// listening waits for the first line of a container's log.
func listening(ctx context.Context, s container.Spec) error {
	return rig.Await(ctx, func() bool {
		text, err := os.ReadFile(s.LogPath)
		return err == nil && strings.Contains(string(text), " stdout F ")
	})
}
