package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

// Condition names what a refused request waits for.
type Condition string

const (
	// PluginAway: the resource's plugin is known and not connected.
	PluginAway Condition = "PluginAway"
	// PluginSuspended: the plugin did not answer several times in a row, and is not
	// called for a while.
	PluginSuspended Condition = "PluginSuspended"
	// NoHealthyDevice: the plugin is there and has no healthy device.
	NoHealthyDevice Condition = "NoHealthyDevice"
)

// ErrAway is behind the errors of Plugins where the plugin is not connected, or its
// connection broke before it had answered.
var ErrAway = errors.New("the device plugin is away")

// ErrSuspended is behind the errors of Plugins where the plugin is not called, as it
// did not answer several times in a row. They contain the time of the next call.
var ErrSuspended = errors.New("the device plugin does not answer")

// WaitError is behind the refusals that time may resolve: the resource is known,
// and none of its devices can be had for the moment.
type WaitError struct {
	Resource  string
	Condition Condition
	// Since is when the plugin went, or when its return was first awaited; zero where
	// that is not known, and where it is not about a plugin that is away.
	Since time.Time
	// Err is what became of a call to a plugin that went away meanwhile; nil where
	// no plugin was called.
	Err error
}

// Error words it as the kubelet does; users and tests search for that text.
func (e *WaitError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return noHealthy(e.Resource)
}

// Unwrap returns Err.
func (e *WaitError) Unwrap() error { return e.Err }

// Waits reports what would have to happen first.
func (e *WaitError) Waits() hint.Wait {
	return hint.Wait{Condition: string(e.Condition), Resource: e.Resource, Since: e.Since}
}

func noHealthy(resource string) string {
	return "no healthy devices present; cannot allocate unhealthy devices " + resource
}

// refuse makes a refusal of this provider. It has no reason of its own: the
// kubelet calls every refusal over devices an unexpected admission error, except
// those that its check of the node's capacity finds.
func refuse(resource string, err error) error {
	e := errdefs.Refuse("", "%w", err)
	e.Provider, e.Resource = Name, resource
	return e
}

// refuseCall makes a refusal of what became of a call to a plugin.
func refuseCall(resource string, err error) error {
	condition := PluginAway
	switch {
	case errors.Is(err, ErrSuspended):
		condition = PluginSuspended
	case !errors.Is(err, ErrAway):
		return refuse(resource, err)
	}
	refused := errdefs.Refuse("", "%w", &WaitError{Resource: resource, Condition: condition, Err: err})
	refused.Provider, refused.Resource = Name, resource
	if own := new(errdefs.Error); errors.As(err, &own) {
		refused.RetryAfter = max(own.RetryAfter, 0)
	}
	return refused
}

func refusef(resource, format string, args ...any) error {
	return refuse(resource, fmt.Errorf(format, args...))
}
