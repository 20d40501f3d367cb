package task_test

import (
	"sync"
	"testing"

	"github.com/berthd/berth/server/internal/task"
)

// TestEach: those that hang keep none of the others from their turn, and all are
// waited for.
func TestEach(t *testing.T) {
	t.Parallel()
	const n, hanging = 200, 63
	release := make(chan struct{})
	var others sync.WaitGroup
	others.Add(n - hanging)
	go func() { others.Wait(); close(release) }()
	done := make([]int, n)
	task.Each(n, func(i int) {
		if i < hanging {
			<-release
		} else {
			others.Done()
		}
		done[i]++
	})
	for i, times := range done {
		if times != 1 {
			t.Errorf("%d was called %d times", i, times)
		}
	}
	task.Each(0, func(int) { t.Error("called for nothing") })
}
