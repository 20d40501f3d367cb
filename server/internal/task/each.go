package task

import "sync"

// sideBySide is how many calls Each has under way at most.
const sideBySide = 64

// Each calls do for 0 to n-1, up to 64 at a time, and returns when all have returned.
// A call that takes long holds up none of the others as long as there are fewer
// than 64 such calls.
func Each(n int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}
