package admission

import "context"

// Reserved lists the pods with a reservation and those that are ending.
func (e *Engine) Reserved() []string {
	reserved, ending := e.reserved.Others("")
	return append(reserved, ending...)
}

// Hold takes the admission lock, as a call of root's.
func (e *Engine) Hold(ctx context.Context) (release func(), err error) { return e.reacquire(ctx) }

// SetUser replaces the function that returns the user of a call.
func (e *Engine) SetUser(user func(ctx context.Context) string) { e.user = user }

// RememberedRefusals is the number of ids that RefusedIDs has at most.
const RememberedRefusals = rememberedRefusals

// RefusedIDs are the ids of refused attempts.
type RefusedIDs struct{ ids refusedIDs }

// Remember binds an id.
func (r *RefusedIDs) Remember(owner, id, uid, digest string) {
	r.ids.remember(owner, id, attempted{uid, digest})
}

// Check refuses an id that is bound to something else.
func (r *RefusedIDs) Check(owner, id, uid, digest string) error {
	return r.ids.check(owner, id, attempted{uid, digest})
}

// Len returns how many ids are remembered.
func (r *RefusedIDs) Len() int { return len(r.ids.ids) }
