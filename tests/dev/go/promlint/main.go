// Prints what Prometheus's own linter says of the metrics on standard input: nothing where they are good. It is what `promtool check
// metrics` asks; promtool itself is made of five times as many packages, those of all clouds among them.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, "promlint: these are no metrics:", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Println(problem.Metric, problem.Text)
	}
}
