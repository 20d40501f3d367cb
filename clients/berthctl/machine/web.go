package machine

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/clients/internal/command"
)

const webLong = `Serve a page for a browser that shows the machine, live: a map with the pods, what needs attention, and what is free. It
explains verdicts, draws states of the past, and tries pods, policies, resizes and defragmentations. The page has the rights
of the user who runs this command. It reads and makes dry runs, and it changes nothing.

The command prints a link and opens it in a browser. The link works once, and only that browser gets the page: other users
of this machine can connect to the port, and get nothing. The command ends with Ctrl+C.

To see the page of another machine, forward the port with ssh, and open the link here:
ssh -o ExitOnForwardFailure=yes -L 127.0.0.1:8087:127.0.0.1:8087 HOST berthctl web --no-browser`

type webFlags struct {
	listen    string
	noBrowser bool
}

func Web(c *command.Ctl) *cobra.Command {
	var f webFlags
	var cmd *cobra.Command
	cmd = c.Local(command.About{
		Use:   "web [--listen ADDRESS] [--no-browser]",
		Short: "Show the machine in a browser",
		Long:  webLong,
		Example: `  berthctl web
  berthctl web --listen 127.0.0.1:9000 --no-browser`,
	}, func(ctx context.Context, _ []string) error {
		if !cmd.Flags().Changed("timeout") {
			c.Timeout = 0
		}
		// The page escapes texts by itself, and has to get them as they are.
		format := c.Format
		c.Format = command.FormatJSON
		defer func() { c.Format = format }()
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error {
			return s.Followed(ctx, func(ctx context.Context) error { return serveWeb(ctx, s, f) })
		})
	})
	fs := cmd.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8087",
		"loopback address to serve on, with the same port of 127.0.0.1 and ::1; port 0 is any free one")
	fs.BoolVar(&f.noBrowser, "no-browser", false, "only print the link")
	return cmd
}

// Bounds of the page's connections.
const (
	webHeaderTimeout = 10 * time.Second
	webIdleTimeout   = 2 * time.Minute
	webHeaderBytes   = 64 << 10
	webReadTimeout   = 10 * time.Second
	webWriteTimeout  = 30 * time.Second
	webGrace         = time.Second
	webFirstCall     = 10 * time.Second
	// webConnections is how many are open; a browser has six.
	WebConnections = 32
)

// serveWeb serves the page until the context ends.
func serveWeb(ctx context.Context, s *command.Session, f webFlags) error {
	// A page of nothing helps nobody. Once it is there, it outlives berthd, and shows that berthd is away.
	first, cancel := context.WithTimeout(ctx, webFirstCall)
	_, err := s.Topology().GetPolicy(first, &topologyv1.GetPolicyRequest{})
	if cancel(); err != nil {
		return err
	}
	listeners, err := listenLoopback(ctx, f.listen)
	if err != nil {
		return err
	}
	defer closeAll(listeners) // the server has closed them, unless it did not begin
	login := page.NewLogin()
	handler := page.New(page.Options{Conn: s.Conn(), About: "berth: " + s.Endpoint()})
	server := &http.Server{
		Handler: login.Only(nil, remember(handler)), ReadHeaderTimeout: webHeaderTimeout, ReadTimeout: webReadTimeout,
		WriteTimeout: webWriteTimeout,
		IdleTimeout:  webIdleTimeout, MaxHeaderBytes: webHeaderBytes,
		ConnContext: withEntered,
		BaseContext: func(net.Listener) context.Context { return ctx }, // streams end with the program
	}
	link := "http://" + listeners[0].Addr().String() + login.Path()
	fmt.Fprintf(s.Out, "%s\n", link)
	if !f.noBrowser {
		remove, err := openBrowser(ctx, link)
		if err != nil {
			fmt.Fprintf(s.Err, "no browser was started: %v; open the link\n", err)
		}
		defer remove()
	}
	served := make(chan error, len(listeners))
	gate := &gate{most: WebConnections}
	for _, l := range listeners {
		go func() { served <- server.Serve(gated{l, gate}) }()
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), webGrace)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		_ = server.Close()
	}
	for range listeners {
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

// redirect sends a browser on. The link is not on a command line, where other users could read it.
func redirect(link string) string {
	link = html.EscapeString(link)
	return `<!doctype html><meta http-equiv="refresh" content="0; url=` + link + `"><a href="` + link + `">berth</a>`
}

// openBrowser opens a link in the user's browser. The returned function removes its files.
func openBrowser(ctx context.Context, link string) (remove func(), err error) {
	remove = func() {}
	program, err := exec.LookPath("xdg-open")
	if err != nil {
		return remove, err
	}
	dir, err := os.MkdirTemp("", "berthctl-web-") // for this user only
	if err != nil {
		return remove, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "open.html")
	if err := os.WriteFile(file, []byte(redirect(link)), 0o600); err != nil {
		return remove, err
	}
	cmd := exec.CommandContext(ctx, program, file)
	if err := cmd.Start(); err != nil {
		return remove, err
	}
	go func() { _ = cmd.Wait() }() // the browser may outlive this program, and its result is not needed
	return remove, nil
}
