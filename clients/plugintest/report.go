package plugintest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Outcome of a check.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Warned  Outcome = "warned"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Check is what came of one expectation.
type Check struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Text describes the observation.
	Text    string  `json:"text"`
	Seconds float64 `json:"seconds"`
}

// Report is what came of all.
type Report struct {
	Socket string `json:"socket"`
	// Resource is set if the plugin reports it (pluginregistration v1).
	Resource string  `json:"resource,omitempty"`
	Checks   []Check `json:"checks"`
}

// Count returns how many checks had an outcome.
func (r *Report) Count(o Outcome) (n int) {
	for _, c := range r.Checks {
		if c.Outcome == o {
			n++
		}
	}
	return n
}

// take runs a check and adds what came of it.
func (r *Report) take(ctx context.Context, name string, check func(context.Context) (string, error)) {
	began := time.Now()
	text, err := check(ctx)
	c := Check{Name: name, Outcome: Passed, Text: text, Seconds: time.Since(began).Seconds()}
	var warned warning
	var skip skipped
	switch {
	case err == nil:
	case errors.As(err, &warned):
		c.Outcome, c.Text = Warned, warned.Error()
	case errors.As(err, &skip):
		c.Outcome, c.Text, c.Seconds = Skipped, skip.Error(), 0
	default:
		c.Outcome, c.Text = Failed, err.Error()
	}
	r.Checks = append(r.Checks, c)
}

// JUnit returns the report in the format of build servers. A warning is in the output of its
// check, which passes.
func (r *Report) JUnit() ([]byte, error) {
	type message struct {
		Text string `xml:"message,attr"`
	}
	type testCase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Seconds float64  `xml:"time,attr"`
		Failure *message `xml:"failure,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
		Output  string   `xml:"system-out,omitempty"`
	}
	suite := struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testCase `xml:"testcase"`
	}{Name: strings.TrimSuffix("deviceplugin v1beta1 at "+r.Socket, " at "), Tests: len(r.Checks), Failures: r.Count(Failed),
		Skipped: r.Count(Skipped)}
	for _, c := range r.Checks {
		row := testCase{Name: c.Name, Class: "deviceplugin", Seconds: c.Seconds}
		switch c.Outcome {
		case Failed:
			row.Failure = &message{c.Text}
		case Skipped:
			row.Skipped = &message{c.Text}
		default:
			row.Output = string(c.Outcome) + ": " + c.Text
		}
		suite.Cases = append(suite.Cases, row)
	}
	text, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the JUnit report: %w", err)
	}
	return append([]byte(xml.Header), append(text, '\n')...), nil
}
