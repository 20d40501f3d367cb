package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/table"
)

// Whole reads a pod with its specification and the history of its devices' health, which a list
// does not have.
func (s *Session) Whole(ctx context.Context, p *typesv1.PodAllocation) (*allocationv1.GetResponse, error) {
	return s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: p.GetUid()}})
}

// HealthTexts describes the health of the devices in claims, one text each. A device without a
// report of its plugin has none.
func (c *Ctl) HealthTexts(claims []*typesv1.Claim) []string {
	var out []string
	for _, claim := range claims {
		for _, d := range claim.GetDevice().GetDevices() {
			if text := c.healthText(d); text != "" {
				out = append(out, claim.GetResource()+" "+d.GetId()+" "+text)
			}
		}
	}
	return out
}

// shownChanges is how many changes of a device's health people see before the last one.
const shownChanges = 3

// healthText returns the health of a device: since when, and the last changes before, newest first.
func (c *Ctl) healthText(d *typesv1.Device) string {
	history := d.GetHealthHistory()
	if len(history) == 0 {
		return Health(d.GetHealth())
	}
	now := history[len(history)-1]
	text := fmt.Sprintf("%s since %s", Health(now.GetHealth()), c.moment(now))
	var before []string
	for _, h := range slices.Backward(history[:len(history)-1]) {
		before = append(before, fmt.Sprintf("%s from %s", Health(h.GetHealth()), c.moment(h)))
	}
	if more := len(before) - shownChanges; more > 0 {
		before = append(before[:shownChanges], fmt.Sprintf("and %d more", more))
	}
	if len(before) > 0 {
		text += "; before: " + strings.Join(before, ", ")
	}
	return text
}

// moment returns when a change was.
func (c *Ctl) moment(h *typesv1.HealthChange) string {
	at := h.GetTime().AsTime()
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339), table.Age(c.Now().Sub(at)))
}

// HealthSince is the time since the last change of a device's health; empty if unknown.
func (c *Ctl) HealthSince(d *typesv1.Device) string {
	history := d.GetHealthHistory()
	if len(history) == 0 {
		return ""
	}
	return table.Age(c.Now().Sub(history[len(history)-1].GetTime().AsTime()))
}
