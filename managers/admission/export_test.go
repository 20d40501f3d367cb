package admission

// Reserved lists the pods with a reservation and those that are ending.
func (e *Engine) Reserved() []string {
	reserved, ending := e.reserved.others("")
	return append(reserved, ending...)
}
