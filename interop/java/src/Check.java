/** One thing a broker must do: a name, and what to try; it passes if nothing is thrown. */
record Check(String name, Body body) {
    interface Body {
        void run(Bench bench) throws Exception;
    }
}
