// Package quickstart runs commands of the documentation and the demo as a reader would run them. It has only tests.
package quickstart
