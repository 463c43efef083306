package suite;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** A public method of a theme that is a case of the suite. It fails by throwing. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface Case {
    /** Seconds after which the case is interrupted and has failed. */
    int limit() default 180;

    /** Why the result on ActiveMQ 5.17.2 is another one; empty where both brokers do the same. */
    String differs() default "";
}
