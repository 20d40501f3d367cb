package plugintest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strconv"
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

// Check reports what came of one expectation.
type Check struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Text describes the observation.
	Text    string  `json:"text"`
	Seconds float64 `json:"seconds"`
}

// Report holds what came of all.
type Report struct {
	Socket string `json:"socket"`
	// Resource is set if the plugin reports it (pluginregistration v1).
	Resource string  `json:"resource,omitempty"`
	Checks   []Check `json:"checks"`
	// Interrupted means that the caller ended the test: the check that ran then and all that would have
	// followed are skipped.
	Interrupted bool `json:"interrupted,omitempty"`
	// Began is when the test began.
	Began time.Time `json:"began"`
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

// interrupted is the text of a check that the caller did not wait for.
const interrupted = "interrupted"

// take runs a check and adds what came of it to the report. What a check finds after its caller has
// ended the test says nothing of the plugin.
func (o *Options) take(ctx context.Context, r *Report, name string, check func(context.Context) (string, error)) {
	name = o.prefix + name
	if ctx.Err() != nil {
		r.Interrupted = true
		r.Checks = append(r.Checks, Check{Name: name, Outcome: Skipped, Text: interrupted})
		return
	}
	if o.Started != nil {
		o.Started(name)
	}
	began := time.Now()
	text, err := check(ctx)
	c := Check{Name: name, Outcome: Passed, Text: text, Seconds: time.Since(began).Seconds()}
	var warned warning
	var skip skipped
	switch {
	case err == nil:
	case ctx.Err() != nil:
		r.Interrupted = true
		c.Outcome, c.Text = Skipped, interrupted
	case errors.As(err, &warned):
		c.Outcome, c.Text = Warned, warned.Error()
	case errors.As(err, &skip):
		c.Outcome, c.Text, c.Seconds = Skipped, skip.Error(), 0
	default:
		c.Outcome, c.Text = Failed, err.Error()
	}
	r.Checks = append(r.Checks, c)
	if o.Done != nil {
		o.Done(c)
	}
}

// JUnit returns the report in the format of build servers. The format has no warnings: a check that
// warned passes, and its text is its property "warning" and in its output.
func (r *Report) JUnit() ([]byte, error) {
	type message struct {
		Text string `xml:"message,attr"`
	}
	type property struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	type testCase struct {
		Name       string     `xml:"name,attr"`
		Class      string     `xml:"classname,attr"`
		Seconds    float64    `xml:"time,attr"`
		Properties []property `xml:"properties>property,omitempty"`
		Failure    *message   `xml:"failure,omitempty"`
		Skipped    *message   `xml:"skipped,omitempty"`
		Output     string     `xml:"system-out,omitempty"`
	}
	suite := struct {
		XMLName    xml.Name   `xml:"testsuite"`
		Name       string     `xml:"name,attr"`
		Tests      int        `xml:"tests,attr"`
		Failures   int        `xml:"failures,attr"`
		Skipped    int        `xml:"skipped,attr"`
		Seconds    float64    `xml:"time,attr"`
		Timestamp  string     `xml:"timestamp,attr"`
		Properties []property `xml:"properties>property"`
		Cases      []testCase `xml:"testcase"`
	}{Name: strings.TrimSuffix("deviceplugin v1beta1 at "+r.Socket, " at "), Tests: len(r.Checks), Failures: r.Count(Failed),
		Skipped: r.Count(Skipped), Timestamp: r.Began.UTC().Format("2006-01-02T15:04:05"),
		Properties: []property{{"warnings", strconv.Itoa(r.Count(Warned))}, {interrupted, strconv.FormatBool(r.Interrupted)}}}
	for _, c := range r.Checks {
		suite.Seconds += c.Seconds
		row := testCase{Name: c.Name, Class: "deviceplugin", Seconds: c.Seconds}
		if c.Outcome == Warned {
			row.Properties = []property{{"warning", c.Text}}
		}
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
