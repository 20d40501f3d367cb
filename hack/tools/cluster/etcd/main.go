// Command etcd runs the server of etcd. Its own module cannot be installed by name: it
// replaces modules by directories of its repository.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
