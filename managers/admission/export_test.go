package admission

import "context"

// Reserved lists the pods with a reservation and those that are ending.
func (e *Engine) Reserved() []string {
	reserved, ending := e.reserved.others("")
	return append(reserved, ending...)
}

// Hold takes the admission lock, as a call of root's.
func (e *Engine) Hold(ctx context.Context) (release func(), err error) { return e.reacquire(ctx) }

// SetUser replaces what tells the user of a call.
func (e *Engine) SetUser(user func(ctx context.Context) string) { e.user = user }
