// Package browser runs a headless Chromium for tests of pages, over the DevTools protocol.
//
// It owns the browser's process and its pipe. It knows the few methods of the protocol that tests
// need: load a page, evaluate a script, take a picture, and report which requests and console
// messages there were. A library of the whole protocol would be larger than the page.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// programs are the names of Chromium in distributions.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// Page is a page in a browser of its own.
type Page struct {
	t       testing.TB
	out     *os.File
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	// loaded is closed by the next load event.
	loaded   chan struct{}
	requests []string
	problems []string
	ended    error
}

type reply struct {
	result json.RawMessage
	err    error
}

type message struct {
	ID        int             `json:"id"`
	Method    string          `json:"method"`
	SessionID string          `json:"sessionId"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Open starts a browser with an empty page of a size. Without Chromium the test is skipped.
func Open(t testing.TB, width, height int) *Page {
	t.Helper()
	program := ""
	for _, name := range programs {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skipf("no browser: none of %s is in PATH", strings.Join(programs, ", "))
	}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "berth-browser-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+dir,
		fmt.Sprintf("--window-size=%d,%d", width, height), "about:blank")
	cmd.ExtraFiles = []*os.File{inRead, outWrite} // 3 and 4, as the protocol requires
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = inRead.Close(), outWrite.Close()
	p := &Page{t: t, out: inWrite, waiting: map[int]chan reply{}, loaded: make(chan struct{})}
	read := make(chan struct{})
	go func() { defer close(read); p.read(outRead) }()
	t.Cleanup(func() {
		_ = inWrite.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-read
		_ = outRead.Close()
		_ = os.RemoveAll(dir)
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	p.call("Target.createTarget", map[string]any{"url": "about:blank", "width": width, "height": height, "newWindow": true}, &target)
	var session struct {
		SessionID string `json:"sessionId"`
	}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Performance.enable", map[string]any{"timeDomain": "threadTicks"}, nil)
	return p
}

// read hands out what the browser sends until it ends.
func (p *Page) read(from *os.File) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		raw, err := in.ReadBytes(0)
		if err != nil {
			p.mu.Lock()
			p.ended = errors.New("the browser has ended")
			for id, wait := range p.waiting {
				wait <- reply{err: p.ended}
				delete(p.waiting, id)
			}
			p.mu.Unlock()
			return
		}
		var m message
		if err := json.Unmarshal(raw[:len(raw)-1], &m); err != nil {
			continue
		}
		p.mu.Lock()
		switch {
		case m.ID != 0:
			if wait, ok := p.waiting[m.ID]; ok {
				delete(p.waiting, m.ID)
				r := reply{result: m.Result}
				if m.Error != nil {
					r.err = errors.New(m.Error.Message)
				}
				wait <- r
			}
		case m.Method == "Page.loadEventFired":
			close(p.loaded)
			p.loaded = make(chan struct{})
		case m.Method == "Network.requestWillBeSent":
			var e struct {
				Request struct{ URL string } `json:"request"`
			}
			_ = json.Unmarshal(m.Params, &e)
			p.requests = append(p.requests, e.Request.URL)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded":
			p.problems = append(p.problems, string(m.Params))
		case m.Method == "Runtime.consoleAPICalled":
			p.problems = append(p.problems, string(m.Params))
		}
		p.mu.Unlock()
	}
}

// call makes a call of the protocol.
func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	p.mu.Lock()
	p.next++
	id, wait := p.next, make(chan reply, 1)
	if p.ended != nil {
		p.mu.Unlock()
		p.t.Fatalf("%s: %v", method, p.ended)
	}
	p.waiting[id] = wait
	raw, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": p.session})
	if params == nil {
		raw, err = json.Marshal(map[string]any{"id": id, "method": method, "sessionId": p.session})
	}
	if err == nil && p.session == "" {
		raw, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	p.mu.Unlock()
	if err == nil {
		_, err = p.out.Write(append(raw, 0))
	}
	if err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	select {
	case r := <-wait:
		if r.err != nil {
			p.t.Fatalf("%s: %v", method, r.err)
		}
		if result != nil {
			if err := json.Unmarshal(r.result, result); err != nil {
				p.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-p.t.Context().Done():
		p.t.Fatalf("%s: %v", method, context.Cause(p.t.Context()))
	}
}

// Load loads an address and waits for its load event.
func (p *Page) Load(url string) {
	p.t.Helper()
	p.mu.Lock()
	loaded := p.loaded
	p.mu.Unlock()
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	select {
	case <-loaded:
	case <-p.t.Context().Done():
		p.t.Fatalf("load %s: %v", url, p.t.Context().Err())
	}
}

// Eval evaluates a script, awaits its promise, and decodes the value.
func (p *Page) Eval(script string, value any) {
	p.t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &got)
	if got.Exception != nil {
		p.t.Fatalf("%s: %s %s", script, got.Exception.Text, got.Exception.Exception.Description)
	}
	if value != nil {
		if err := json.Unmarshal(got.Result.Value, value); err != nil {
			p.t.Fatalf("%s: %v", script, err)
		}
	}
}

// Until waits until a script's value is true. The browser evaluates it in every frame.
func (p *Page) Until(condition string) {
	p.t.Helper()
	p.Eval(`new Promise((done, fail) => { const end = performance.now() + 60000; const look = () => {
		if (`+condition+`) done(true); else if (performance.now() > end) fail(new Error('a minute has passed: ' + document.body.innerText.slice(0, 500)));
		else setTimeout(look, 5); }; look(); })`, nil)
}

// ProcessorTime is what scripts, styles, layout and painting have used of a processor, in the
// main thread of the page.
func (p *Page) ProcessorTime() time.Duration {
	p.t.Helper()
	var got struct {
		Metrics []struct {
			Name  string  `json:"name"`
			Value float64 `json:"value"`
		} `json:"metrics"`
	}
	p.call("Performance.getMetrics", nil, &got)
	for _, m := range got.Metrics {
		if m.Name == "TaskDuration" {
			return time.Duration(m.Value * float64(time.Second))
		}
	}
	p.t.Fatal("the browser does not tell TaskDuration")
	return 0
}

// Resize gives the page another size.
func (p *Page) Resize(width, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// codes are the keys that write nothing, with the number that browsers have for each.
var codes = map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}

// Press presses keys one after the other, as a keyboard does: "Tab", "Shift+Tab", "Ctrl+Enter", "a".
func (p *Page) Press(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		modifiers := 0
		for name, bit := range map[string]int{"Ctrl+": 2, "Shift+": 8} {
			if rest, ok := strings.CutPrefix(key, name); ok {
				key, modifiers = rest, modifiers|bit
			}
		}
		text := key
		code, ok := codes[key]
		if ok {
			text = map[string]string{"Enter": "\r", " ": " "}[key]
		}
		event := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
		if text != "" {
			event["text"] = text
		}
		p.call("Input.dispatchKeyEvent", event, nil)
		delete(event, "text")
		event["type"] = "keyUp"
		p.call("Input.dispatchKeyEvent", event, nil)
	}
}

// Type writes a text where the focus is.
func (p *Page) Type(text string) {
	p.t.Helper()
	p.call("Input.insertText", map[string]any{"text": text}, nil)
}

// Picture returns the page as PNG.
func (p *Page) Picture() []byte {
	p.t.Helper()
	var got struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	raw, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	return raw
}

// Media sets a feature of the medium, such as prefers-color-scheme.
func (p *Page) Media(name, value string) {
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": name, "value": value}}}, nil)
}

// Requests are the addresses that were requested.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Problems are exceptions, and messages of the console and of the browser.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.problems)
}
