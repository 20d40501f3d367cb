package command

import (
	"fmt"
	"time"
)

const TimeMillis = "2006-01-02T15:04:05.000Z07:00"

// TimeOf reads an age or a time of a flag; empty is the zero time.
func (c *Ctl) TimeOf(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age > 0 {
		return c.Now().Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%s %s: expected an age such as 10m, or a time such as 2026-11-20T12:00:00Z", flag, text)
	}
	return at, nil
}
