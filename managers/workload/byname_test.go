package workload

import (
	"fmt"
	"testing"
)

// TestNames finds every container of small and of large pods by its name, and none by another one.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, fewContainers, fewContainers + 1, 100} {
		p := &Pod{}
		for i := range n {
			p.Containers = append(p.Containers, Container{Name: fmt.Sprint("c", i)})
		}
		names := p.Names()
		for i := range p.Containers {
			if at := names.At(p.Containers[i].Name); at != i {
				t.Errorf("%d containers: %s is at %d", n, p.Containers[i].Name, at)
			}
		}
		for _, name := range []string{"", "c", fmt.Sprint("c", n)} {
			if at := names.At(name); at != -1 {
				t.Errorf("%d containers: %q is at %d", n, name, at)
			}
		}
	}
}
