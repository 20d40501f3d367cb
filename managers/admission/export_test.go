package admission

// Reserved lists the pods with a reservation.
func (e *Engine) Reserved() []string { return e.reserved.others("") }
