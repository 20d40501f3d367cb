package device

import "context"

// Plugins carries the manager's questions to the plugins. Both must end within a
// deadline of the implementation's own, and name the resource
// in their errors. Errors are what the plugin answered, those of class Unavailable
// that wrap ErrAway if it did not get to answer because it is away or ErrSuspended if
// it was not called at all, and those of class Deadline if it did not answer in time.
type Plugins interface {
	// Preferred returns the size devices out of available that the plugin prefers,
	// among them all of mustInclude (GetPreferredAllocation). It is only called
	// if the plugin's options announce it, and changes nothing. The answer is
	// advice: unknown ids in it are ignored and missing ones made up for. After an error
	// the manager chooses alone, so the implementation logs it.
	Preferred(ctx context.Context, resource string, available, mustInclude []string, size int) ([]string, error)
	// Allocate makes devices ready for a container (Allocate with exactly one
	// container request) and returns the plugin's ContainerAllocateResponse in
	// wire form. ids are all devices of the container, in order.
	Allocate(ctx context.Context, resource string, ids []string) ([]byte, error)
}
