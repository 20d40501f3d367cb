package command

import (
	"context"
	"fmt"
)

// The severities of findings.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Checked reports what is wrong on a node whose kubelet decides. Its JSON form is documented in docs/cli-output.md.
type Checked struct {
	// Findings are errors first.
	Findings []NodeFinding `json:"items"`
	// Skipped are the checks that were not made, by the reason.
	Skipped []SkippedChecks `json:"skipped,omitempty"`
	// Missing are the parts of the node that could not be read.
	Missing []string `json:"missing,omitempty"`
}

// NodeFinding is something that is wrong.
type NodeFinding struct {
	Check    string   `json:"check"`
	Severity string   `json:"severity"`
	Object   string   `json:"object"`
	Text     string   `json:"text"`
	Evidence []string `json:"evidence,omitempty"`
	Reports  []string `json:"reports,omitempty"`
	Do       []string `json:"do,omitempty"`
	// Unconfirmed means that one reading of the node was made where two are needed.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// SkippedChecks tells why checks were not made.
type SkippedChecks struct {
	Reason string   `json:"reason"`
	Checks []string `json:"checks"`
}

// CheckNode finds what is wrong on the node of --kubelet.
func (c *Ctl) CheckNode(ctx context.Context, now bool) (*Checked, error) {
	if err := c.forNode("'berthctl ledger check' is for a berthd"); err != nil {
		return nil, err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	node, err := c.kubeletNode(ctx)
	if err != nil {
		return nil, err
	}
	checked, err := c.Check(ctx, node, now)
	if err != nil {
		return nil, fmt.Errorf("--kubelet: %w", err)
	}
	return checked, nil
}
