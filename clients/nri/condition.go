package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/report"
	"github.com/berthd/berth/clients/nri/policy"
)

// conditionType is the condition of the Node object that says whether berth places the node's pods.
const conditionType = "BerthReady"

const (
	// conditionLook is the interval of looks at the state of the node, conditionSettle how long another state must last before it
	// is written: a restart is no outage, and no other source of specifications. The end of an outage is written at once.
	// conditionHeartbeat is the interval of writes of the same state. Readers take a condition that is three heartbeats old for unknown.
	conditionLook      = 2 * time.Second
	conditionSettle    = 10 * time.Second
	conditionHeartbeat = 5 * time.Minute
	// conditionRetry is the pause after a write that has failed.
	conditionRetry = 30 * time.Second
)

// The reasons of the condition. The first three are of the status True.
const (
	reasonReady          = "Ready"
	reasonKubeletServer  = "ReadyWithKubeletServer"
	reasonByContainer    = "ReadyByContainer"
	reasonKubeletStatic  = "KubeletStaticPolicy"
	reasonNoRuntime      = "RuntimeNotConnected"
	reasonRuntimeStalled = "RuntimeStalled"
	reasonNeverReady     = "NeverReady"
	reasonBerthdNotReady = "BerthdNotReady"
)

// nodeState is what the condition says.
type nodeState struct{ reason, message string }

func (s nodeState) ready() bool {
	return s.reason == reasonReady || s.reason == reasonKubeletServer || s.reason == reasonByContainer
}

// state tells whether the node's pods are placed, and else the most important reason why not.
func (o *options) state(p *policy.Policy, runtime *connection, source *sources) nodeState {
	notReady := p.Ready()
	switch standby := p.Standby(); {
	case standby != nil:
		return nodeState{reasonKubeletStatic, standby.Error() + "; pods start as without berth, and none is moved"}
	case runtime.ready() != nil:
		return nodeState{reasonNoRuntime, fmt.Sprintf("berth-nri has no connection to the runtime (%s): pods start without a place",
			o.socket)}
	case p.Stalled() != nil:
		return nodeState{reasonRuntimeStalled,
			fmt.Sprintf("containers are not moved, and those that need exclusive CPUs of others do not start: %v", p.Stalled())}
	case notReady == nil:
		return source.ready()
	case !p.EverReady():
		return nodeState{reasonNeverReady, fmt.Sprintf("berthd has never been ready on this node, so pods start without a place: %v%s",
			notReady, o.reported())}
	}
	pods := "no container starts, except in " + strings.Join(o.passNamespaces, ", ")
	if o.failure == pass {
		pods = "containers start on the shared CPUs"
	}
	return nodeState{reasonBerthdNotReady, fmt.Sprintf("%s: %v%s", pods, notReady, o.reported())}
}

// largestReport is more than a check writes.
const largestReport = 64 << 10

// reported is what the checks before the start have found, as a part of a sentence.
func (o *options) reported() (text string) {
	for _, path := range o.checkReports {
		found, err := input.Regular(path, largestReport)
		if err != nil {
			continue // no check has run
		}
		if line := strings.TrimSpace(string(found[:min(len(found), report.MaxLine)])); line != "" &&
			!strings.HasPrefix(line, report.Passed) {
			text += "; " + line
		}
	}
	return text
}

// condition keeps the condition of the Node object.
type condition struct {
	server *apiServer
	look   func() nodeState
	wrote  func() // nil: nobody counts

	present, written nodeState
	since            time.Time // the present state lasts
	changed          time.Time // of the status, as written
	dueAt            time.Time // the next write of the same state
	failing          bool      // a failure is in the log
}

// run looks and writes until the context ends.
func (c *condition) run(ctx context.Context) {
	c.since = c.server.now()
	if err := c.adopt(ctx); err != nil {
		c.server.log.Debug("read the condition of the node failed", "error", err)
	}
	tick := time.NewTicker(conditionLook)
	defer tick.Stop()
	for {
		c.step(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// adopt reads the condition that an earlier berth-nri has written: the status keeps the time of its last change.
func (c *condition) adopt(ctx context.Context) error {
	var n corev1.Node
	if err := c.server.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(c.server.node), nil, &n); err != nil {
		return err
	}
	for _, have := range n.Status.Conditions {
		if have.Type == conditionType {
			c.written, c.changed = nodeState{have.Reason, have.Message}, have.LastTransitionTime.Time
		}
	}
	return nil
}

// step writes the state if it is another one, or if a heartbeat is due.
func (c *condition) step(ctx context.Context) {
	now, state := c.server.now(), c.look()
	if state.reason != c.present.reason {
		c.since = now
	}
	c.present = state
	other := state.reason != c.written.reason
	settled := state.ready() && !c.written.ready() || now.Sub(c.since) >= conditionSettle
	if now.Before(c.dueAt) && (!other || c.failing || !settled) || other && !settled {
		return
	}
	changed := c.changed
	if changed.IsZero() || state.ready() != c.written.ready() {
		changed = now
	}
	if err := c.write(ctx, state, changed, now); err != nil {
		if !c.failing && ctx.Err() == nil {
			c.server.log.Warn("write the condition of the node failed", "node", c.server.node, "error", err)
		}
		c.failing, c.dueAt = true, now.Add(conditionRetry)
		return
	}
	if c.wrote != nil {
		c.wrote()
	}
	before := c.written
	c.written, c.changed, c.failing, c.dueAt = state, changed, false, now.Add(conditionHeartbeat)
	if other && (state.reason != reasonReady || before.reason != "") {
		e := event{c.server.aboutNode(c.server.nodeUID()), "Berth" + state.reason, state.message, !state.ready()}
		if err := c.server.send(ctx, e, now); err != nil && ctx.Err() == nil {
			c.server.log.Warn("send an event about the node failed", "node", c.server.node, "error", err)
		}
	}
}

// nodeStatus is the part of a Node object that berth-nri applies.
type nodeStatus struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []corev1.NodeCondition `json:"conditions,omitempty"`
	} `json:"status"`
}

func (c *condition) write(ctx context.Context, s nodeState, changed, now time.Time) error {
	status := corev1.ConditionFalse
	if s.ready() {
		status = corev1.ConditionTrue
	}
	return c.apply(ctx, corev1.NodeCondition{
		Type: conditionType, Status: status, Reason: s.reason, Message: plain(s.message),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(changed),
	})
}

// apply makes the conditions those of berth-nri in the Node object; without any, its condition is removed.
func (c *condition) apply(ctx context.Context, conditions ...corev1.NodeCondition) error {
	body := nodeStatus{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	body.Metadata.Name, body.Status.Conditions = c.server.node, conditions
	return c.server.call(ctx, http.MethodPatch,
		"/api/v1/nodes/"+url.PathEscape(c.server.node)+"/status?fieldManager="+fieldManager+"&force=true", body, nil)
}

// remove removes the condition from a node that berth leaves.
func (c *condition) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.apply(ctx)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return nil
	}
	return err
}
