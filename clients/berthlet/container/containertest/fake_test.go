package containertest_test

import (
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container/containertest"
)

func TestFake(t *testing.T) {
	t.Parallel()
	containertest.Run(t, func(*testing.T) containertest.Bench {
		changed := make(chan string, 100)
		return containertest.Bench{
			Runtime: containertest.NewFake(time.Now, func(uid string) { changed <- uid }),
			Image:   "none", Program: "/probe", Changed: changed,
		}
	})
}
